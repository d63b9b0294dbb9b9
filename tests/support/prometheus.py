"""Prometheus' text format 0.0.4, read strictly: for the tests of the proxy's numbers and of envd's."""
import math
import re

NAME, LABEL = r"[a-zA-Z_:][a-zA-Z0-9_:]*", r"[a-zA-Z_][a-zA-Z0-9_]*"
SAMPLE = re.compile(rf'({NAME})(?:\{{((?:{LABEL}="(?:[^"\\\n]|\\[\\"n])*",?)*)\}})? (\S+)')
ENDINGS = {"counter": ("",), "gauge": ("",), "histogram": ("_bucket", "_sum", "_count"), "summary": ("", "_sum", "_count")}


class Family:
    def __init__(self, name):
        self.name, self.type, self.help = name, None, None
        self.samples = {}  # (name, labels): value


def parse(text):
    """The text format 0.0.4, taken strictly: every family in one piece, with its HELP and TYPE before its samples."""
    families, current = {}, None
    assert text.endswith("\n") and "\r" not in text
    for line in text[:-1].split("\n"):
        assert line and line == line.strip(), line
        if line.startswith("#"):
            _, kind, name, rest = line.split(" ", 3)
            assert re.fullmatch(NAME, name), line
            if kind == "HELP":
                assert name not in families, f"{name} comes twice"
                current = families[name] = Family(name)
                current.help = rest
                assert not re.search(r"\\(?![\\n])", rest), line
            else:
                assert kind == "TYPE" and name == current.name and current.type is None and not current.samples, line
                assert rest in ENDINGS, line
                current.type = rest
            continue
        match = SAMPLE.fullmatch(line)
        assert match, line
        name, labels, value = match.groups()
        assert current and name in (current.name + ending for ending in ENDINGS[current.type]), line
        pairs = tuple(sorted(re.findall(rf'({LABEL})="((?:[^"\\]|\\.)*)"', labels or "")))
        assert len({key for key, _ in pairs}) == len(pairs), line
        assert (name, pairs) not in current.samples, f"twice: {line}"
        current.samples[name, pairs] = float(value)
    for family in families.values():
        assert family.type and family.samples, f"{family.name} has no samples"
        check(family)
    return families


def check(family):
    name, samples = family.name, family.samples
    if family.type == "counter":
        assert name.endswith("_total"), f"{name}: counters are called so"
        assert all(value >= 0 and not math.isnan(value) for value in samples.values()), name
    else:
        assert not name.endswith("_total"), f"{name} is a {family.type}"
    if family.type == "histogram":
        buckets = [(float(dict(labels)["le"]), value) for (key, labels), value in samples.items() if key.endswith("_bucket")]
        assert [le for le, _ in buckets] == sorted({le for le, _ in buckets}), f"{name}: bounds in order"
        assert [value for _, value in buckets] == sorted(value for _, value in buckets), f"{name}: counts add up"
        assert buckets[-1] == (math.inf, samples[name + "_count", ()]), f"{name}: the last bucket holds all"
