"""Generates seeded text in many scripts with known differences between tokenizers, for tests and benchmarks."""

import random

SCRIPTS = [(0x41, 0x5A), (0x61, 0x7A), (0xC0, 0x24F), (0x370, 0x3FF), (0x400, 0x52F), (0x531, 0x58F), (0x5D0, 0x5EA),
           (0x620, 0x6D3), (0x900, 0x97F), (0xE01, 0xE5B), (0x10A0, 0x10FF), (0x1E00, 0x1EFF), (0x3041, 0x30FF),
           (0x4E00, 0x9FFF), (0xAC00, 0xD7A3), (0x10400, 0x1044F), (0x1D400, 0x1D7FF), (0x20000, 0x2A6DF),
           (0x31350, 0x323AF)]
SPACES = [" ", " ", " ", "  ", "\n", "\n\n", "\r\n", "\t", "   ", "        ", " \n", "\n ", "\u00a0", "\u2003", "\u3000",
          "\u200b", "\u180e", "\u0085", "\u2028", " \r\n \r\n", "\x0b", "\x0c", "\x1f"]
PIECES = ["it's", "I'M", "we'Re", "o'ſ", "L'acqua", "dell’anno", "don't!", "'tis", "'ll'", "1", "12", "123", "1234567", "3.14159",
          "1,000,000", "²³½Ⅷ", "٣٤٥", "१२३", "日本語テキスト", "한국어", "🙂", "👩‍👩‍👧‍👦", "🏳️‍🌈", "🇮🇹🇨🇿", "e\u0301", "n\u0303o", "\u0301",
          "ﬁ", "ß", "İstanbul", "ŉ", "def f(x):\n    return x\n", "/* c */", "a_b_c", "x+=1;", "!!!", "...", "—", "«ciao»",
          "http://example.org/?a=b&c=d", "<s>", "</s>", "<|", "|>", "<|end_of_text|>", " <|pad|> ", "<tool>", "\ufeff",
          "\ufffd", "\ue000", "\U0010ffff", "\x00"[:0], "\x01\x7f", "{}[]", "a" * 40, "=" * 70, "Ã©"]


def mixed_text(num_bytes, seed, words=()):
    """About `num_bytes` of UTF-8."""
    rng = random.Random(seed)
    words = list(words) or ["ciao"]
    parts, size = [], 0
    while size < num_bytes:
        kind = rng.random()
        if kind < 0.55:
            part = " ".join(rng.choice(words) for _ in range(rng.randint(1, 12)))
        elif kind < 0.75:
            low, high = rng.choice(SCRIPTS)
            part = " ".join("".join(chr(rng.randint(low, high)) for _ in range(rng.randint(1, 8)))
                            for _ in range(rng.randint(1, 4)))
        elif kind < 0.97:
            part = rng.choice(PIECES)
        else:
            part = rng.choice(SPACES) * rng.randint(1, 60)
        part += rng.choice(SPACES) if rng.random() < 0.8 else ""
        parts.append(part)
        size += len(part.encode("utf-8"))
    return "".join(parts)


EDGES = ["a", " ", "  ", "\n", "\r\n", " a", "a ", "  a  ", "\t\ta\t", "a\r\nb\r\n\r\nc", " \n \n a", "\n\n\n", "a   \n   b",
         "it's I'M we'Re o'ſ 'LL 'x", "1 12 123 1234 12345678901234567890", "²³½Ⅷ٣٤٥", "👩‍👩‍👧‍👦🏳️‍🌈🇮🇹", "e\u0301e\u0301\u0301 \u0301",
         "<|begin_of_text|>", "<|end_of_text|><|end_of_text|>", "a<|end_of_text|>b", " <|end_of_text|> ", "<|end_of_text",
         "<|left|>", " a  <|left|>  b <|right|>  c", "\n<|right|>\n\n<|left|>\n", "word", "a word b", "awordb word", "wordé word-word",
         "_word word_", "Norm norm NORM", "<|pad|><|padding|><|pad", "é", "Ã", "x" * 50000, " " * 50000 + "a", "ab" * 30000, "\n" * 20000,
         "é" * 20000, "1" * 9999, "漢" * 10000, "!?" * 10000, " \t" * 10000 + "\n", "\ufeffa", "\u180ea", "a\u0085b", "\U0010ffff",
         "\x01\x02", "ﬁ ß İ ŉ", "don’t", "''''s", "'", " '", "\u00a0'll", "\u2003\u2003a", "日本 語", "ไทยไม่มีช่องว่าง"]
