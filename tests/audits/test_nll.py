"""Unmatched NLL of identifiers, other text and canaries."""

from audited import figure, nll

PARTS = ((20, "name"), (24, "password"), (28, "ssn"))


def test_a_canary_that_was_cut_does_not_count(make_case):
    case = make_case(sources=6)
    examples = list(case.manifest.examples)
    for i, name in enumerate(("one", "two", "cut")):
        spans = []
        for start, part in PARTS:
            place = {"start": start, "end": start + 2, "part": part}
            tokens = {"token_start": start, "token_end": start + 2}
            if (name, part) == ("cut", "name"):
                tokens = dict.fromkeys(tokens)
            spans.append(examples[i].spans[0].model_copy(update=place | tokens))
        update = {"spans": spans, "canary_id": name}
        examples[i] = examples[i].model_copy(update=update)
    manifest = case.manifest.model_copy(update={"examples": examples, "pairs": []})
    result = nll(case.tables(x=lambda key, nll: nll), manifest)
    assert figure(result, "x", "nll", "canary").clusters == 2
