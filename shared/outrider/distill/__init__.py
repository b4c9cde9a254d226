"""Training a small draft for a given target, on the target's own answers.

collect (answers of the target) -> student (layers and vocabulary out of the target) -> training (towards the target's
distribution) -> evaluate (acceptance on answers held out). `outrider.distill.main` runs them, each from where it was.
"""
