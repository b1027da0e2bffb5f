"""A source file is known by its text, whatever its line ends."""

from __future__ import annotations

from hashlib import blake2b

from memprof.runfile.source_digests import digest_of


def test_the_digest_is_blake2b_of_sixteen_bytes() -> None:
    assert digest_of(b"x = 1\n") == blake2b(b"x = 1\n", digest_size=16).hexdigest()
    assert len(digest_of(b"")) == 32


def test_line_ends_do_not_count_and_every_other_byte_does() -> None:
    assert digest_of(b"a\r\nb\r\n") == digest_of(b"a\nb\n")
    assert digest_of(b"a\nb\n") != digest_of(b"a\nb")
    assert digest_of(b"a\rb\n") != digest_of(b"a\nb\n")
