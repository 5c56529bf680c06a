"""What the core answers, frozen: seeded cases of buckets under limits, each with the output of every step.

A case is one bucket and its life: it is made, charged, settled, split, filled up, under limits and clocks that change.
Its steps follow from its number alone, and the images evolve by the writes that the code under test returns, so a
difference shows at the first step that makes one.

    dice.py         choices that are the same in every version of Python
    worlds.py       limits, terms, costs and instants as they come
    adapter.py      the one place that calls the code under test
    normal.py       outputs as plain values
    case.py         one bucket, and what is known of it
    recorder.py     the steps of a case, one after the other
    charging.py, settling.py, upkeep.py, looking.py     the kinds of steps
    archive.py      the goldens, and how they are written

``python -m tests.core_goldens`` lists the cases that differ, ``--show 17`` prints all steps of a case beside the
goldens. ``--write`` freezes what the code answers now: only for a change of behaviour that was decided.
"""
