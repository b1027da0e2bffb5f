"""A source file, a run and findings about its lines, for tests of the rules; no test is here."""

from __future__ import annotations

import os

import numpy as np

from memprof.loading import load
from memprof.records import Holder, SourceFiles
from memprof.reference_chain import Link, LinkKind
from memprof.rules.finding import Evidence, Growth, Kind, RuleFinding
from memprof.rules.remedies import with_remedies
from memprof.rules.rule import Match
from memprof.runfile.source_digests import digest_of
from memprof.testing import TraceBuilder, write_run
from memprof.trace import Frame, Phase
from memprof.views.examination import examine
from memprof.views.window import site_at


class Bench:
    """A source file, a run, and findings about lines of that file."""

    def __init__(self, folder):
        self.folder = folder
        self.settings = {}
        self.writes = 0
        self.backward = True
        self.sizes = ()
        self.digests = {}

    def write(self, text):
        self.file = self.folder / "train.py"
        self.file.write_text(text)
        self.writes += 1  # each before the recording, whose time is made up
        os.utime(self.file, (self.writes, self.writes))
        self.lines = text.splitlines()
        return self

    def record(self):
        """The run that follows is of the file as it is now, and says so by its digest."""
        self.digests = {str(self.file): digest_of(self.file.read_bytes())}
        return self

    def line(self, text):
        return next(n for n, line in enumerate(self.lines, 1) if text in line)

    def holder(self, text, *links):
        """A holder with a line that contains ``text``; links are given as they are, or in short."""
        line = self.line(text)
        made = [one if isinstance(one, Link) else link(*one) for one in links]
        return Holder(made[-1].kind, str(self.file), line, self.lines[line - 1], made)

    def advise(
        self,
        site,
        *holders,
        kind=Kind.LEAK,
        category="",
        allocs=(),
        nbytes=4096,
        rule="",
        match=None,
        growth=None,
    ):
        """The remedies for growth, or for what ``rule`` matched, at the line that says ``site``."""
        if rule and match is None:
            match = Match(0, np.zeros(0, dtype=np.int64), nbytes)
        trace = TraceBuilder(device="cuda:0", settings=self.settings)
        trace.label(step=0, phase=Phase.BACKWARD if self.backward else Phase.FORWARD)
        trace.alloc(512, "x")
        for size in self.sizes:  # each cuts a segment of its own that fits no later one
            trace.alloc(size, "large").alloc(512, f"small{size}").free("large")
        files = SourceFiles([*self.digests], [*self.digests.values()])
        write_run(self.folder / "run.json", trace.build(), more=[files] if self.digests else [])
        frame = Frame("step", str(self.file), self.line(site))
        found = RuleFinding(
            kind=Kind.WASTE if rule else kind,
            device="cuda:0",
            site=site_at(frame),
            title="",
            bytes=nbytes,
            bytes_per_step=nbytes,
            stack=(frame,),
            category=category,
            holders=holders,
            evidence=Evidence(0, np.array(allocs, dtype=np.int64)),
            growth=growth or Growth(),
            rule=rule,
            match=match,
        )
        return with_remedies(found, examine(load(self.folder / "run.json"))).remedies


def link(kind, name, length):
    """A link by its kind, its name or the node that it goes through, and its length."""
    if kind == LinkKind.AUTOGRAD_NODE:
        return Link(LinkKind.AUTOGRAD_NODE, nodes=((name, 1),), length=length)
    return Link(LinkKind(kind), name, length=length)


def fixes(remedies):
    return [remedy.fix for remedy in remedies]


LOOP = """\
def step(net, kept):
    loss = net().mean()
    kept.append(loss)
    loss.backward()
"""
