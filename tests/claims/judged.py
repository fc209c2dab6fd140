"""Shared by the tests of claims: a verdict that has evaluated every hypothesis its claim names."""

from __future__ import annotations

from isthmus.claims import CLAIMS


def verdict(identity, subject):
    found = CLAIMS[identity].evaluate(subject)
    assert {h.name for h in found.hypotheses} == set(CLAIMS[identity].hypotheses)
    return found


def status(identity, subject):
    return verdict(identity, subject).status


def part(identity, subject, name):
    """The part of that name, judged for itself."""
    return next(one for one in verdict(identity, subject).parts if one.name == name)
