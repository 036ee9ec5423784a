"""Sentences whose characters tokenizers count differently: accents, emoji, scripts and spaces."""

from __future__ import annotations

SENTENCES = [
    "Angela Merkel met Emmanuel Macron in Berlin, near the Brandenburg Gate.",
    "El Niño wärmt Zürich und São Paulo; Émile zahlt 12,50€ im Café „Łódź“.",
    "café cafe\u0301 CAFÉ İstanbul straße STRASSE",
    "Ünal 😀 lives 👩‍👩‍👧 in 東京都 and Москва … 한국어 ελληνικά.",
    "two\nlines\twith   odd  spaces \u00a0 and\u200bnothing ",
    "Mail j.doe@example.com or call +49-30-901820, ok?",
    "a",
    "I",
]
