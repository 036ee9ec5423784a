"""Load images from untrusted or trusted sources: URLs, data URIs, files, bytes, PIL images and arrays."""
