"""Rules: one file for each kind of finding, with detector, evidence, words and advice.

`rule` says what a rule consists of; the folders beside it hold the rules and are collected by
themselves (`collection`). `findings` runs all of them over a run.
"""
