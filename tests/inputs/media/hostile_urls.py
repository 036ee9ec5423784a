"""SSRF attempts: URLs that must never open a connection; `{port}` is that of a listener at 127.0.0.1 and ::1."""

from __future__ import annotations

ALLOWED = "images.example.com"  # the only allowed host; it resolves to loopback like every other name

LITERALS = [
    "127.0.0.1", "127.0.0.1.", "127.1", "127.0.1", "127.255.255.254", "0.0.0.0", "0", "0.0", "00.0.0.0", "0x0",
    "2130706433", "017700000001", "0x7f000001", "0x7F.0.0.1", "0177.0.0.1", "0177.0.0.01", "0x7f.1", "127.0x0.0.1",
    "127.0.0x0001", "0x7f.0x0.0x0.0x1", "0177.1", "00000177.0.0.1", "4294967295", "6425673729", "127.0.0.1.5",
    "10.0.0.1", "10.255.255.255", "172.16.0.1", "172.31.255.255", "192.168.0.1", "192.168.255.255", "100.64.0.1",
    "100.100.100.200", "169.254.169.254", "2852039166", "0xA9FEA9FE", "0251.0376.0251.0376", "192.0.0.192",
    "192.0.2.1", "198.18.0.1", "198.51.100.7", "203.0.113.9", "224.0.0.1", "239.255.255.250", "240.0.0.1",
    "255.255.255.255", "168.63.129.16", "192.88.99.1",
    "[::1]", "[::]", "[0:0:0:0:0:0:0:1]", "[::127.0.0.1]", "[::ffff:127.0.0.1]", "[::ffff:7f00:1]", "[::ffff:0:0]",
    "[0:0:0:0:0:ffff:7f00:0001]", "[::ffff:169.254.169.254]", "[::ffff:10.0.0.1]", "[64:ff9b::127.0.0.1]",
    "[64:ff9b::7f00:1]", "[64:ff9b::a9fe:a9fe]", "[64:ff9b:1::7f00:1]", "[2002:7f00:1::]", "[2002:a9fe:a9fe::1]",
    "[2002:0a00:1::]", "[2001:0:7f00:1::]", "[fe80::1]", "[fe80::1%25lo]", "[fe80::1%lo]", "[::1%25lo]", "[fc00::1]",
    "[fd00:ec2::254]", "[fec0::1]", "[ff02::1]", "[100::1]", "[2001:db8::1]", "[3fff::1]", "[5f00::1]", "[4000::1]",
    "[::1", "::1]", "[127.0.0.1]", "[[::1]]", "[]", "[::1]x",
]  # fmt: skip

NAMES = [
    "localhost", "LOCALHOST", "localhost.", "localhost..", "LocalHost.LocalDomain", "ip6-localhost",
    "127.0.0.1.nip.example", "rebind.example.org", "metadata.google.internal", "instance-data",
    "kubernetes.default.svc", "host.docker.internal", "x", "a.b",
    f"{ALLOWED}.evil.example", f"evil-{ALLOWED}", f"sub.{ALLOWED}",
    "ｌｏｃａｌｈｏｓｔ", "ⓛⓞⓒⓐⓛⓗⓞⓢⓣ", "１２７.0.0.1", "127。0。0。1", "127．0．0．1", "①②⑦.⓪.⓪.①", "lo\u00adcalhost",
    "local\u200bhost", "exa\u2100mple.org", "xn--", "xn--a", "ımages.example.com", "images\u3002example\u3002com",
    "%6c%6f%63%61%6c%68%6f%73%74", "127.0.0.1%00.example.org", "127.0.0.1%2f", "a" * 64 + ".example", "a." * 130 + "b",
    "-", "_", "..", ".", "", "*", "localhost,images.example.com", "localhost;images.example.com",
]  # fmt: skip

WHOLE = [
    # parsers disagree whether the text before or after @, backslash or # is the host
    f"http://{ALLOWED}@127.0.0.1:{{port}}/", f"http://{ALLOWED}:80@127.0.0.1:{{port}}/",
    f"http://user:secret@{ALLOWED}:{{port}}/", f"http://@{ALLOWED}:{{port}}/", "http://:@127.0.0.1:{port}/",
    f"http://127.0.0.1:{{port}}\\@{ALLOWED}/", f"http://127.0.0.1:{{port}}@{ALLOWED}/",
    f"http://127.0.0.1:{{port}}#@{ALLOWED}/", f"http://127.0.0.1:{{port}}?@{ALLOWED}/",
    f"http://{ALLOWED}\\@127.0.0.1:{{port}}/", f"http://{ALLOWED}\\.127.0.0.1:{{port}}/",
    f"http://{ALLOWED}%40127.0.0.1:{{port}}/", f"http://127.0.0.1:{{port}}%5c@{ALLOWED}/",
    f"http://{ALLOWED}:{{port}}\\@127.0.0.1/", "http://a:b@c@127.0.0.1:{port}/", f"http://{ALLOWED}&@127.0.0.1:{{port}}/",
    # too many or too few slashes and colons
    "http:/127.0.0.1:{port}/", "http:127.0.0.1:{port}/", "http:///127.0.0.1:{port}/", "http:////127.0.0.1:{port}/",
    "http:\\\\127.0.0.1:{port}\\", "http://\\127.0.0.1:{port}/", "http:/\\127.0.0.1:{port}/", "//127.0.0.1:{port}/",
    "http://127.0.0.1:/", "http://127.0.0.1:{port}:80/", "http://127.0.0.1:0{port}0/", "http://127.0.0.1:-1/",
    "http://127.0.0.1:99999/", "http://127.0.0.1:+{port}/", "http://127.0.0.1: {port}/", "http://127.0.0.1:{port}x/",
    "http://127.0.0.1:８０/", "http://127.0.0.1:0/",
    # characters that some parsers remove
    " http://127.0.0.1:{port}/", "http://127.0.0.1:{port}/ ", "\thttp://127.0.0.1:{port}/", "ht\ntp://127.0.0.1:{port}/",
    "http://127.0.0.1:{port}/\r\nHost: x", "http://127.0.0.1:{port}/\r\n\r\nGET /", "http://127.0\t.0.1:{port}/",
    "http://127.0.0.1\x00.example.com:{port}/", "http://127.0.0.1:{port}/\x00", "http://\x7f127.0.0.1:{port}/",
    "http://127.0.0.1:{port}/a b", "http://127.0.0.1\u2028:{port}/", "http://127.0.0.1\u00a0:{port}/",
    "http://\u202e127.0.0.1:{port}/", "\ufeffhttp://127.0.0.1:{port}/",
    # other schemes
    "HTTP://127.0.0.1:{port}/", "hTTps://127.0.0.1:{port}/", "https://localhost:{port}/", "ftp://127.0.0.1:{port}/",
    "gopher://127.0.0.1:{port}/_GET", "dict://127.0.0.1:{port}/", "ldap://127.0.0.1:{port}/", "tftp://127.0.0.1:{port}/",
    "jar:http://127.0.0.1:{port}/!/", "view-source:http://127.0.0.1:{port}/", "url:http://127.0.0.1:{port}/",
    "blob:http://127.0.0.1:{port}/", "ws://127.0.0.1:{port}/", "unix:///var/run/docker.sock", "javascript:alert(1)",
    "file://127.0.0.1:{port}/etc/passwd", "file:///etc/passwd", "FILE:///etc/passwd", "file:/etc/passwd",
    "file:etc/passwd", "netdoc:///etc/passwd", "s3://bucket/key", "about:blank", "", "http", "http:", "http://",
    "https://", "/etc/passwd", "../../etc/passwd", "C:\\boot.ini", "\\\\127.0.0.1\\share", "~/.ssh/id_rsa",
    f"http://{ALLOWED}:{{port}}/a.png", f"https://{ALLOWED}:{{port}}/a.png", f"http://{ALLOWED.upper()}.:{{port}}/a.png",
    "http://127.0.0.1:{port}/" + "a" * 10_000,
]  # fmt: skip


def hostile_urls(port: int) -> list[str]:
    whole = [url.replace("{port}", str(port)) for url in WHOLE]
    return [*(f"http://{host}:{port}/a.png" for host in (*LITERALS, *NAMES)), *whole]
