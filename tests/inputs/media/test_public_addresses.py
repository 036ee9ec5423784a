"""Classification of IP addresses, and URL parsing."""

from __future__ import annotations

import ipaddress

import pytest

from cenote.inputs.media.public_addresses import is_public
from cenote.inputs.media.urls import normalize_host, parse_url


@pytest.mark.parametrize(
    "address", ["8.8.8.8", "1.1.1.1", "2606:4700::1111", "::ffff:8.8.8.8", "64:ff9b::808:808", "2002:808:808::1"]
)
def test_an_address_of_the_internet_is_public(address: str) -> None:
    assert is_public(ipaddress.ip_address(address))


@pytest.mark.parametrize(
    "address",
    [
        "127.0.0.1", "10.1.2.3", "172.20.0.1", "192.168.1.1", "169.254.169.254", "100.64.0.1", "0.0.0.0", "224.0.0.5",
        "255.255.255.255", "192.0.0.192", "168.63.129.16", "::1", "::", "fe80::1", "fec0::1", "fd00::1", "ff0e::1",
        "::ffff:10.0.0.1", "64:ff9b::10.0.0.1", "2002:a00:1::1", "2001::1", "::8.8.8.8", "64:ff9b:1::808:808",
    ],
)  # fmt: skip
def test_a_private_or_reserved_address_is_not_public(address: str) -> None:
    assert not is_public(ipaddress.ip_address(address))


def test_a_url_is_parsed() -> None:
    target = parse_url("HTTPS://Bücher.Example.:8443/Bild ä.png".replace(" ", "") + "?x=1#top")

    assert target is not None
    assert (target.scheme, target.host, target.port) == ("https", "xn--bcher-kva.example", 8443)
    assert target.path == "/Bild%C3%A4.png?x=1"
    assert target.host_header == "xn--bcher-kva.example:8443"


@pytest.mark.parametrize(
    "url, header, path",
    [
        ("http://a.example", "a.example", "/"),
        ("http://a.example:80/b", "a.example", "/b"),
        ("http://a.example?q", "a.example", "/?q"),
        ("https://[2606:4700::1111]/", "[2606:4700::1111]", "/"),
        ("https://[2606:4700:0::1111]:444/", "[2606:4700::1111]:444", "/"),
    ],
)
def test_the_host_header_is_normalized(url: str, header: str, path: str) -> None:
    target = parse_url(url)

    assert target is not None and (target.host_header, target.path) == (header, path)


def test_every_spelling_of_a_host_is_normalized() -> None:
    spellings = {"Images.Example.Com", "images.example.com.", "ｉmages.example.com", "images。example。com"}

    assert {normalize_host(host) for host in spellings} == {"images.example.com"}
