"""HPACK block by block. Most tests run over the compiled codec and its oracle, the `hpack` package."""

from __future__ import annotations

import gc
import importlib
from typing import Any

import hpack
import pytest
from tests.support.hpack_codecs import codec_of

from h2ping._fast import IMPLEMENTATION

Field = tuple[bytes, bytes]

REQUEST: list[Field] = [
    (b":method", b"GET"),
    (b":scheme", b"http"),
    (b":path", b"/"),
    (b":authority", b"www.example.com"),
]
SECURE_REQUEST: list[Field] = [
    (b":method", b"GET"),
    (b":scheme", b"https"),
    (b":path", b"/index.html"),
    (b":authority", b"www.example.com"),
    (b"custom-key", b"custom-value"),
]
RESPONSE: list[Field] = [
    (b":status", b"302"),
    (b"cache-control", b"private"),
    (b"date", b"Mon, 21 Oct 2013 20:13:21 GMT"),
    (b"location", b"https://www.example.com"),
]
COOKIE = b"foo=ASDJKHQKBZXOQWEOPIUAXQWEOIU; max-age=3600; version=1"
GZIPPED: list[Field] = [
    (b":status", b"200"),
    (b"cache-control", b"private"),
    (b"date", b"Mon, 21 Oct 2013 20:13:22 GMT"),
    (b"location", b"https://www.example.com"),
    (b"content-encoding", b"gzip"),
    (b"set-cookie", COOKIE),
]

# RFC 7541 appendix C.3 to C.6: three blocks each on one connection; the responses with a table of 256 octets.
C3 = [
    ("828684410f7777772e6578616d706c652e636f6d", REQUEST),
    ("828684be58086e6f2d6361636865", [*REQUEST, (b"cache-control", b"no-cache")]),
    ("828785bf400a637573746f6d2d6b65790c637573746f6d2d76616c7565", SECURE_REQUEST),
]
C4 = [
    ("828684418cf1e3c2e5f23a6ba0ab90f4ff", REQUEST),
    ("828684be5886a8eb10649cbf", [*REQUEST, (b"cache-control", b"no-cache")]),
    ("828785bf408825a849e95ba97d7f8925a849e95bb8e8b4bf", SECURE_REQUEST),
]
C5 = [
    (
        "4803333032580770726976617465611d4d6f6e2c203231204f637420323031332032303a31333a323120474d54"
        "6e1768747470733a2f2f7777772e6578616d706c652e636f6d",
        RESPONSE,
    ),
    ("4803333037c1c0bf", [(b":status", b"307"), *RESPONSE[1:]]),
    (
        "88c1611d4d6f6e2c203231204f637420323031332032303a31333a323220474d54c05a04677a69707738666f6f"
        "3d4153444a4b48514b425a584f5157454f50495541585157454f49553b206d61782d6167653d333630303b2076"
        "657273696f6e3d31",
        GZIPPED,
    ),
]
C6 = [
    (
        "488264025885aec3771a4b6196d07abe941054d444a8200595040b8166e082a62d1bff6e919d29ad171863c78f"
        "0b97c8e9ae82ae43d3",
        RESPONSE,
    ),
    ("4883640effc1c0bf", [(b":status", b"307"), *RESPONSE[1:]]),
    (
        "88c16196d07abe941054d444a8200595040b8166e084a62d1bffc05a839bd9ab77ad94e7821dd7f2e6c7b335df"
        "dfcd5b3960d5af27087f3672c1ab270fb5291f9587316065c003ed4ee5b1063d5007",
        GZIPPED,
    ),
]
APPENDIX_C = [
    pytest.param(C3, 4096, id="C.3-requests"),
    pytest.param(C4, 4096, id="C.4-requests-huffman"),
    pytest.param(C5, 256, id="C.5-responses"),
    pytest.param(C6, 256, id="C.6-responses-huffman"),
]
SIZE_256 = bytes.fromhex("3fe101")


@pytest.fixture
def codec(engine: str) -> Any:
    return codec_of(engine)


@pytest.fixture
def fast(pytestconfig: pytest.Config) -> Any:
    """The compiled codec alone, for what its oracle does differently or not at all."""
    if pytestconfig.getoption("--no-c") or IMPLEMENTATION != "compiled":
        pytest.skip("the compiled codec was not built, or is switched off")
    return importlib.import_module("h2ping._fast.hpack")


def by_name(*, without: tuple[bytes, ...] = (), never: tuple[bytes, ...] = ()) -> Any:
    return lambda name: 2 if name in never else 1 if name in without else 0


# --- the vectors of RFC 7541 appendix C ---------------------------------------------------------------------


@pytest.mark.parametrize(("blocks", "table_size"), APPENDIX_C)
def test_decodes_the_examples_of_the_rfc(codec: Any, blocks: list[Any], table_size: int) -> None:
    """RFC 7541 appendix C.3 to C.6."""
    decoder = codec.Decoder()
    first = SIZE_256 if table_size == 256 else b""
    for block, fields in blocks:
        assert decoder.decode_block(first + bytes.fromhex(block)) == fields
        first = b""


@pytest.mark.parametrize(("blocks", "table_size"), [APPENDIX_C[1], APPENDIX_C[3]])
def test_encodes_the_examples_of_the_rfc(codec: Any, engine: str, blocks: list[Any], table_size: int) -> None:
    """RFC 7541 appendix C.4 and C.6."""
    encoder = codec.Encoder()
    encoder.header_table_size = table_size
    first = SIZE_256 if table_size == 256 else b""
    for block, fields in blocks:
        if engine == "c":  # 307 is as long in the Huffman code as it is plain; we write it plain
            block = block.replace("83640eff", "03333037")
        assert encoder.encode_block(fields) == first + bytes.fromhex(block)
        first = b""


def test_the_tables_after_the_examples_are_those_of_the_rfc(codec: Any) -> None:
    """RFC 7541 appendix C.4.3 and C.5.3, "dynamic table after decoding"."""
    requests, responses = codec.Decoder(), codec.Decoder()
    for block, _ in C4:
        requests.decode_block(bytes.fromhex(block))
    responses.decode_block(SIZE_256)
    for block, _ in C5:
        responses.decode_block(bytes.fromhex(block))
    assert requests.table_fields == [
        (b"custom-key", b"custom-value"),
        (b"cache-control", b"no-cache"),
        (b":authority", b"www.example.com"),
    ]
    assert responses.table_fields == [
        (b"set-cookie", COOKIE),
        (b"content-encoding", b"gzip"),
        (b"date", b"Mon, 21 Oct 2013 20:13:22 GMT"),
    ]


@pytest.mark.parametrize(
    ("block", "field", "indexed"),
    [
        pytest.param(
            "400a637573746f6d2d6b65790d637573746f6d2d686561646572",
            (b"custom-key", b"custom-header"),
            True,
            id="C.2.1-with-indexing",
        ),
        pytest.param("040c2f73616d706c652f70617468", (b":path", b"/sample/path"), False, id="C.2.2-without"),
        pytest.param("100870617373776f726406736563726574", (b"password", b"secret"), False, id="C.2.3-never"),
        pytest.param("82", (b":method", b"GET"), False, id="C.2.4-indexed"),
    ],
)
def test_decodes_each_representation(codec: Any, block: str, field: Field, indexed: bool) -> None:
    """RFC 7541 appendix C.2."""
    decoder = codec.Decoder()
    assert decoder.decode_block(bytes.fromhex(block)) == [field]
    assert decoder.table_fields == ([field] if indexed else [])


@pytest.mark.parametrize(
    ("size", "update"),
    [
        (10, "2a"),
        (30, "3e"),
        (31, "3f00"),
        (158, "3f7f"),
        (159, "3f8001"),
        (1337, "3f9a0a"),
        (4095, "3fe01f"),
    ],
)
def test_integers_are_written_as_the_rfc_does(codec: Any, size: int, update: str) -> None:
    """RFC 7541 section 5.1 and appendix C.1, seen in table size updates: the prefix there has five bits."""
    encoder, decoder = codec.Encoder(), codec.Decoder()
    encoder.header_table_size = size
    assert encoder.encode_block([]) == bytes.fromhex(update)
    decoder.decode_block(bytes.fromhex(update))
    assert decoder.header_table_size == size


# --- what a decoder refuses ---------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "block",
    [
        pytest.param("80", id="index-0"),
        pytest.param("be", id="index-62-of-an-empty-table"),
        pytest.param("7e0161", id="name-index-62-of-an-empty-table"),
        pytest.param("ff80808080808080808001", id="integer-too-long"),
        pytest.param("7fffffffffffffffffff7f0161", id="name-index-overflows-64-bits"),
        pytest.param("ff", id="integer-cut-off"),
        pytest.param("ff80", id="integer-cut-off-later"),
        pytest.param("40", id="name-missing"),
        pytest.param("4001", id="name-cut-off"),
        pytest.param("400161", id="value-missing"),
        pytest.param("40016102", id="value-cut-off"),
        pytest.param("4001617fffffffff0f61", id="value-longer-than-memory"),
        pytest.param("3fe21f", id="table-size-4097"),
        pytest.param("8220", id="table-size-after-a-field"),
        pytest.param("4001618200", id="huffman-of-zeros-cut-off"),
        pytest.param("40016181f0", id="huffman-padding-with-zeros"),
        pytest.param("400161821fff", id="huffman-padding-of-a-whole-octet"),
        pytest.param("40016184ffffffff", id="huffman-eos-and-two-bits"),
        pytest.param("40016184fffffffc", id="huffman-eos-exactly"),
    ],
)
def test_malformed_blocks_are_hpack_errors(codec: Any, block: str) -> None:
    """RFC 7541 sections 2.3.3, 4.2, 5.1, 5.2 and 6.1; the caller's answer is RFC 9113 section 4.3."""
    with pytest.raises(codec.HpackError):
        codec.Decoder().decode_block(bytes.fromhex(block))


def test_every_truncation_of_a_block_is_an_error_or_a_shorter_list(codec: Any) -> None:
    """RFC 7541 section 5: no read goes past the end of the block."""
    block = bytes.fromhex(C6[2][0].replace("c1", "82").replace("c0", "82"))
    whole = codec.Decoder().decode_block(block)
    for end in range(len(block)):
        try:
            fields = codec.Decoder().decode_block(block[:end])
        except codec.HpackError:
            continue
        assert fields == whole[: len(fields)]


def test_an_integer_padded_beyond_five_octets_is_refused(fast: Any) -> None:
    """RFC 7541 section 5.1: encodings that exceed the limits of an implementation are decoding errors."""
    assert fast.Decoder().decode_block(bytes.fromhex("ff8080808000")[:0]) == []
    assert fast.Decoder().decode_block(bytes.fromhex("3f8080808000")) == []
    with pytest.raises(fast.HpackError, match="five octets"):
        fast.Decoder().decode_block(bytes.fromhex("3f808080808000"))


def test_seven_bits_of_padding_are_enough(codec: Any) -> None:
    """RFC 7541 section 5.2: fewer than eight. `W` has a code of seven bits, `&` one of eight."""
    assert codec.Decoder().decode_block(bytes.fromhex("40016181f8")) == [(b"a", b"&")]
    assert codec.Decoder().decode_block(bytes.fromhex("40016181e5")) == [(b"a", b"W")]
    assert codec.Decoder().decode_block(bytes.fromhex("40016180")) == [(b"a", b"")]


# --- the dynamic table --------------------------------------------------------------------------------------


def test_a_field_as_large_as_the_table_fits_and_one_larger_empties_it(codec: Any) -> None:
    """RFC 7541 section 4.4."""
    decoder = codec.Decoder()
    literal = b"\x40\x01a"
    decoder.decode_block(literal + b"\x01b")
    decoder.decode_block(literal + bytes.fromhex("7fe01e") + b"c" * 4063)
    assert decoder.table_fields == [(b"a", b"c" * 4063)]
    decoder.decode_block(literal + b"\x01b")
    assert decoder.table_fields == [(b"a", b"b")]
    assert decoder.decode_block(literal + bytes.fromhex("7fe11e") + b"c" * 4064) == [(b"a", b"c" * 4064)]
    assert decoder.table_fields == []


def test_the_name_of_the_entry_about_to_be_evicted_can_be_referred_to(codec: Any) -> None:
    """RFC 7541 section 4.4 cautions against deleting the name of a new entry before that entry is added."""
    decoder = codec.Decoder()
    decoder.decode_block(bytes.fromhex("3f31") + b"\x40\x04name\x05value")  # 80 octets hold one entry
    assert decoder.decode_block(b"\x7e\x06second") == [(b"name", b"second")]
    assert decoder.table_fields == [(b"name", b"second")]


def test_a_table_size_update_evicts(codec: Any) -> None:
    """RFC 7541 section 4.3."""
    decoder = codec.Decoder()
    decoder.decode_block(b"\x40\x01a\x01b\x40\x01c\x01d")
    assert decoder.decode_block(bytes.fromhex("3f03be")) == [(b"c", b"d")]
    assert decoder.table_fields == [(b"c", b"d")]
    assert decoder.decode_block(bytes.fromhex("203fe11f")) == []
    assert decoder.table_fields == []
    assert decoder.header_table_size == 4096


def test_a_peer_has_to_shrink_after_our_limit_went_down(codec: Any) -> None:
    """RFC 7541 section 4.2: the update has to come at the beginning of the next block."""
    decoder = codec.Decoder()
    decoder.max_allowed_table_size = 100
    with pytest.raises(codec.HpackError):
        decoder.decode_block(b"\x82")
    decoder = codec.Decoder()
    decoder.max_allowed_table_size = 100
    assert decoder.decode_block(bytes.fromhex("3f4582")) == [(b":method", b"GET")]


def test_a_table_larger_than_the_default_keeps_every_entry(codec: Any) -> None:
    """RFC 9113 section 6.5.2: SETTINGS_HEADER_TABLE_SIZE may be raised; entries stay, in their order."""
    decoder = codec.Decoder()
    decoder.decode_block(b"".join(b"\x40\x01%c\x00" % (65 + number) for number in range(26)))
    decoder.max_allowed_table_size = 1 << 16
    decoder.decode_block(bytes.fromhex("3fe1ff03") + b"\x40\x01a\x00" * 300)
    names = b"".join(name for name, _ in decoder.table_fields)
    assert names == b"a" * 300 + bytes(range(90, 64, -1))


# --- table sizes on the encoder's side ----------------------------------------------------------------------


@pytest.mark.parametrize(
    ("limits", "updates"),
    [
        pytest.param([4096], "", id="unchanged"),
        pytest.param([65536], "", id="raised-above-what-we-use"),
        pytest.param([100], "3f45", id="lowered"),
        pytest.param([0], "20", id="none"),
        pytest.param([0, 4096], "203fe11f", id="down-and-up"),
        pytest.param([100, 0, 50, 200], "203fa901", id="smallest-then-final"),
        pytest.param([200, 100], "3f45", id="down-twice"),
        pytest.param([100, 65536], "3f453fe11f", id="down-and-above-what-we-use"),
    ],
)
def test_the_smallest_and_the_final_size_are_announced_once(
    fast: Any, limits: list[int], updates: str
) -> None:
    """RFC 7541 section 4.2: the smallest size of the interval, then the final one, before the next field."""
    encoder = fast.Encoder()
    for limit in limits:
        encoder.header_table_size = limit
    assert encoder.encode_block([(b":method", b"GET")]) == bytes.fromhex(updates) + b"\x82"
    assert encoder.encode_block([(b":method", b"GET")]) == b"\x82"
    assert encoder.header_table_size == min(limits[-1], 4096)


def test_growing_back_is_announced_too(fast: Any) -> None:
    """RFC 7541 section 4.2."""
    encoder = fast.Encoder()
    encoder.header_table_size = 100
    encoder.encode_block([])
    encoder.header_table_size = 4096
    assert encoder.encode_block([]) == bytes.fromhex("3fe11f")


def test_entries_evicted_by_a_smaller_limit_are_not_referred_to(fast: Any) -> None:
    """RFC 7541 section 4.3: after a moment at size 0 both sides start from nothing."""
    encoder, decoder = fast.Encoder(), codec_of("py").Decoder()
    fields = [(b"x-kept", b"1"), (b"x-kept-too", b"2")]
    decoder.decode_block(encoder.encode_block(fields))
    encoder.header_table_size = 0
    encoder.header_table_size = 4096
    assert decoder.decode_block(encoder.encode_block(fields)) == fields
    assert decoder.table_fields == encoder.table_fields == fields[::-1]


# --- classes of fields --------------------------------------------------------------------------------------


def test_a_secret_is_never_indexed(codec: Any) -> None:
    """RFC 7541 section 7.1.3: the literal says so to every later hop, and repeating it changes nothing."""
    encoder = codec.Encoder(by_name(never=(b"authorization", b"x-api-key")))
    fields = [(b"authorization", b"Bearer 1"), (b"x-api-key", b"2")]
    first = encoder.encode_block(fields)
    assert first == encoder.encode_block(fields)
    assert first[0] == 0x1F  # name index 23, above the four bits of the prefix
    assert first[1] == 23 - 15
    assert encoder.table_fields == []
    assert codec_of("py").Decoder().decode_block(first) == fields


def test_an_empty_secret_is_no_index_of_the_static_table(fast: Any) -> None:
    """Rule 2. The static table has `authorization` and `cookie` with an empty value."""
    encoder = fast.Encoder(by_name(never=(b"cookie",)))
    assert encoder.encode_block([(b"cookie", b"")]) == bytes.fromhex("1f1100")


def test_a_volatile_field_is_written_without_indexing(fast: Any) -> None:
    """RFC 7541 section 6.2.2."""
    encoder = fast.Encoder(by_name(without=(b"content-length", b"x-request-id")))
    block = encoder.encode_block([(b"content-length", b"42"), (b"x-request-id", b"")])
    assert block[:2] == bytes.fromhex("0f0d")
    assert encoder.table_fields == []
    assert codec_of("py").Decoder().decode_block(block) == [
        (b"content-length", b"42"),
        (b"x-request-id", b""),
    ]


def test_a_secret_can_use_the_name_of_an_entry_of_the_dynamic_table(fast: Any) -> None:
    """Only the value is secret; its name may be in the table from before."""
    classes = {b"x-key": 0}
    encoder, decoder = fast.Encoder(lambda name: classes[name]), codec_of("py").Decoder()
    decoder.decode_block(encoder.encode_block([(b"x-key", b"public")]))
    other = fast.Encoder(by_name(never=(b"x-key",)))
    assert other.encode_block([(b"x-key", b"secret")])[0] == 0x10
    assert other.table_fields == []


def test_classify_is_asked_once_a_name(fast: Any) -> None:
    asked: list[bytes] = []

    def classify(name: bytes) -> int:
        asked.append(name)
        return 0

    encoder = fast.Encoder(classify)
    for value in (b"1", b"2"):
        encoder.encode_block([(b"a", value), (b"b", value)])
    assert asked == [b"a", b"b"]


def test_answers_of_classify_are_forgotten_before_they_fill_memory(fast: Any) -> None:
    """Names come from clients."""
    asked: list[bytes] = []

    def classify(name: bytes) -> int:
        asked.append(name)
        return 1

    encoder = fast.Encoder(classify)
    for number in range(2000):
        encoder.encode_block([(b"x-%d" % number, b"")])
    encoder.encode_block([(b"x-0", b"")])
    assert asked.count(b"x-0") == 2


def test_a_field_of_more_than_half_the_table_is_not_indexed(fast: Any) -> None:
    """It would push out what later requests share."""
    encoder = fast.Encoder()
    encoder.encode_block([(b"x-small", b"1"), (b"x-large", b"v" * 2100)])
    assert encoder.table_fields == [(b"x-small", b"1")]


# --- failures and limits ------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "wrong", [(b"a",), (b"a", "b"), ("a", b"b"), [b"a", b"b"], (b"a", None), (b"a", memoryview(b"b")), None]
)
def test_an_encoder_that_failed_starts_over_in_step_with_its_peer(fast: Any, wrong: Any) -> None:
    """Rule 4: the peer has not seen what the failed block put into the table."""
    encoder, decoder = fast.Encoder(), codec_of("py").Decoder()
    decoder.decode_block(encoder.encode_block([(b"x-before", b"1")]))
    with pytest.raises(TypeError):
        encoder.encode_block([(b"x-lost", b"2"), wrong])
    fields = [(b"x-before", b"1"), (b"x-after", b"3")]
    block = encoder.encode_block(fields)
    assert block[:4] == bytes.fromhex("203fe11f")
    assert decoder.decode_block(block) == fields
    assert decoder.table_fields == encoder.table_fields


def test_an_encoder_that_failed_with_no_table_still_announces_it(fast: Any) -> None:
    """Rule 4, where the peer allows no table at all."""
    encoder = fast.Encoder()
    encoder.header_table_size = 0
    with pytest.raises(TypeError):
        encoder.encode_block([None])
    assert encoder.encode_block([]) == b"\x20"
    assert encoder.encode_block([]) == b""


def test_a_failing_classify_is_an_error_of_its_own(fast: Any) -> None:
    def classify(name: bytes) -> int:
        raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        fast.Encoder(classify).encode_block([(b"a", b"b")])


def test_a_bomb_of_indexes_is_stopped_and_the_table_stays_in_step(fast: Any) -> None:
    """RFC 7541 section 7.3: one octet stands for 4,000. Rule 6: only the stream fails."""
    decoder = fast.Decoder(max_section_bytes=65536)
    bomb = b"\x40\x01b" + bytes.fromhex("7fa11e") + b"x" * 4000 + b"\xbe" * 16000 + b"\x40\x05after\x01y"
    with pytest.raises(fast.FieldSectionTooLarge, match="16002 fields"):
        decoder.decode_block(bomb)
    assert decoder.table_fields == [(b"after", b"y"), (b"b", b"x" * 4000)]
    assert decoder.decode_block(b"\xbe") == [(b"after", b"y")]


def test_the_number_of_fields_is_limited(codec: Any) -> None:
    """CVE-2019-9516 and its kin: empty fields cost the peer one octet each."""
    decoder = codec.Decoder(max_fields=100)
    assert len(decoder.decode_block(b"\x82" * 100)) == 100
    with pytest.raises(codec.FieldSectionTooLarge):
        decoder.decode_block(b"\x82" * 101)


def test_a_section_of_exactly_the_limit_passes(codec: Any) -> None:
    """RFC 9113 section 6.5.2: names, values, and 32 octets a field."""
    block = b"\x00\x01a\x03bcd" * 2
    assert codec.Decoder(max_section_bytes=72).decode_block(block) == [(b"a", b"bcd")] * 2
    with pytest.raises(codec.FieldSectionTooLarge):
        codec.Decoder(max_section_bytes=71).decode_block(block)


def test_a_malformed_block_above_the_limit_is_still_malformed(fast: Any) -> None:
    """Where the table is lost, the connection is."""
    with pytest.raises(fast.HpackError):
        fast.Decoder(max_fields=1).decode_block(b"\x82\x82\x80")


def test_h2_can_set_the_limits_by_its_own_names(fast: Any) -> None:
    """h2 assigns these when SETTINGS take effect (its `_local_settings_acked`)."""
    decoder = fast.Decoder()
    decoder.max_header_list_size = 100
    decoder.max_allowed_table_size = 10
    assert (decoder.max_header_list_size, decoder.max_section_bytes) == (100, 100)
    assert decoder.max_allowed_table_size == 10


def test_nothing_is_left_behind(fast: Any) -> None:
    """Tables hold references; a codec that goes lets go of them."""
    value = b"v" * 1000
    fields = [(b"x-%d" % number, value) for number in range(40)]
    encoder, decoder = fast.Encoder(), fast.Decoder()
    for _ in range(3):
        decoder.decode_block(encoder.encode_block(fields))
    del encoder, decoder, fields
    gc.collect()
    assert not [thing for thing in gc.get_referrers(value) if type(thing) is tuple]


def test_a_field_that_evicts_the_last_one_of_its_name_takes_its_place() -> None:
    """RFC 7541 section 4.4: the name was found before the room was made. Under AddressSanitizer a proof."""
    if IMPLEMENTATION != "compiled":
        pytest.skip("the compiled modules are switched off")
    encoder = importlib.import_module("h2ping._fast.hpack").Encoder()
    oracle = hpack.Decoder()
    for turn in range(300):
        for name in (b"x-a", b"x-b", b"x-c", b"x-d"):
            field = (name, b"%06d" % turn + b"v" * 900)
            assert [tuple(got) for got in oracle.decode(encoder.encode_block([field]), raw=True)] == [field]
