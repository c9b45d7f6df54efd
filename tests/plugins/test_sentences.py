import numpy as np
import pytest

from evalharness.errors import UnknownNameError, UsageError
from evalharness.plugins import sentences
from evalharness.plugins.sentences.data import KINDS
from evalharness.plugins.sentences.vocabulary import ENTITIES, NUMBERS, TEMPLATES, TOPICS

SENTENCES, PAIRS = sentences.evalharness_datasets()


def load(split="test", **params):
    return SENTENCES.load(split, **{**SENTENCES.params, **params}).parts["items"]


def read(samples):
    return samples.read(np.arange(samples.size))


def test_columns_hold_the_factors():
    samples = load()
    assert samples.modality == "text"
    assert set(samples.columns) == {"label", "topic", "register", "polarity", "number", "entity", "wording"}
    assert samples.columns["label"].names == tuple(TOPICS)
    assert samples.ids[17] == "test/000017"
    assert all(np.bincount(column.values).min() > 0 for column in samples.columns.values())


def test_factors_are_seen_in_the_text():
    samples = load()
    for row, text in enumerate(read(samples)):
        number = samples.columns["number"].labels()[row]
        assert samples.columns["entity"].labels()[row] in text
        assert number in text or NUMBERS[number] in text
        assert "{" not in text


def test_training_splits_hold_no_held_out_wording():
    assert set(load("train").columns["wording"].labels()) == {"seen"}
    assert set(load("validation").columns["wording"].labels()) == {"seen"}
    assert (load().columns["wording"].values == 1).mean() == pytest.approx(0.48, abs=0.06)


def test_a_bag_of_words_finds_the_topic_of_seen_wording_only():
    from sklearn.feature_extraction.text import HashingVectorizer
    from sklearn.linear_model import RidgeClassifier

    train, test = load("train"), load()
    hashing = HashingVectorizer(n_features=2048, ngram_range=(1, 2))
    probe = RidgeClassifier().fit(hashing.transform(read(train)), train.columns["topic"].values)
    hit = probe.predict(hashing.transform(read(test))) == test.columns["topic"].values
    unseen = test.columns["wording"].values == 1
    assert hit[~unseen].mean() > 0.9
    assert 0.2 < hit[unseen].mean() < 0.7


def test_items_depend_on_seed_split_and_row_alone():
    assert read(load(test=20)) == read(load(test=1000))[:20]
    assert read(load(seed=1)) != read(load())
    assert read(load("validation", validation=50)) != read(load("train", train=50))
    assert load().fingerprint == SENTENCES.identity("test", **SENTENCES.params).digest != load(seed=1).fingerprint


def test_pairs_score_by_kind():
    links = PAIRS.load("test").links["pairs"]
    kinds, scores = links.columns["kind"].labels(), links.columns["score"].values
    expected = {"paraphrase": {4.5, 5.0}, "number-swap": {3.5}, "entity-swap": {3.0}, "negation": {2.0}, "unrelated": {0.0, 1.0}}
    assert {kind: set(scores[kinds == kind].tolist()) for kind in KINDS} == expected
    assert (links.rows[:, 0] == links.rows[:, 1]).all()


def test_pairs_differ_in_what_their_kind_says():
    data = PAIRS.load("test")
    left, right = data.parts["left"], data.parts["right"]
    kinds = data.links["pairs"].columns["kind"].labels()
    changed = {"negation": "polarity", "entity-swap": "entity", "number-swap": "number"}
    for factor in ("topic", "polarity", "entity", "number"):
        differs = left.columns[factor].values != right.columns[factor].values
        for kind in KINDS[:-1]:
            assert (differs[kinds == kind] == (changed.get(kind) == factor)).all(), (kind, factor)
    assert all(one != two for one, two in zip(read(left), read(right), strict=True))


def test_vocabulary_is_well_formed():
    assert len(ENTITIES) == len(set(ENTITIES))
    assert {len(forms) for forms in TEMPLATES.values()} == {4}
    for events in TOPICS.values():
        assert len(events) == 10
        assert all(len(verbs) == len(objects) == 2 and all("/" in verb for verb in verbs) for verbs, objects in events)


def test_wrong_parameters_are_named():
    with pytest.raises(UsageError, match="`test` of `sentences` is a number of rows, at least 1, got 0"):
        load(test=0)
    with pytest.raises(UsageError, match="`seed` of `sentences` is a whole number, got None"):
        load(seed=None)
    with pytest.raises(UnknownNameError, match="unknown split of `sentences` `dev`; known: test, train, validation"):
        load("dev")
