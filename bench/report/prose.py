"""What the page says around its tables."""

OPENING = """\
What a decision takes, beside other libraries, on the same machine in the same run. Less is better, but in the last row:
in a *crowd* more is asked for than the limit gives, and what was due was granted if no window got more than the bound
and at least 95 % of it was given out."""

METHOD = """\
`make bench` measures all of this in one run and writes `bench/results.json`, this page, its plots and the figures of
the README. Do not edit the page: change `bench/` and run it again, or `python -m bench.report` where nothing has to be
measured anew.

- **Same work.** Every limiter is asked the same through one adapter with one method, `take(key, cost)`. All share
  one redis-py and one Redis server on the same machine. A limit is a number per period with a capacity of the same
  number, so that buckets and windows promise the same. Where a limiter has a token bucket it is used; `limits` has
  windows only and takes part with its cheapest, the fixed one, and with its sliding window counter, which gives
  tokens back gradually as a bucket does.
- **Kinds of work.** *One limit*: 1 of a million a minute. *Two limits*: that and 500 of a billion a minute. *Over the
  limit*: 1 of 10 an hour that are gone. *1,000 keys* take turns on one limit each. *32 callers at once*: tasks of one
  event loop on one key with two limits.
- **Time and CPU** are medians of many short rounds, everybody in turn in an order that changes, per decision. CPU
  is user and system time of the client's process. Behind HTTP they are those of a quiet round, and an import is the
  best of seven: what is left of them is small beside the noise.
- **Redis** counts the commands that it is sent (by `MONITOR`), bytes in and out and its own CPU (by `INFO`).
- **Oracle.** Whatever the algorithm, a limit of capacity c and rate r may grant c + r x w in a window of length w.
  Under more demand than that every grant is logged with the moments at which it was asked for and answered, and
  the worst of all windows counts; a window is as long as its grants can have taken, so slow answers accuse nobody.
  One token is tolerated. Less than 95 % of what was due, although somebody was refused, is under-admission.
- Two figures within 2 % of each other are level. Below that a rival is ahead, and the list says so."""

RATIOS = "A rival's figure divided by ours: above 1 the rival needs more."

CROWDS = """\
100 tokens a second with a capacity of 100. *Saturated*: everybody asks again at once for 1.5 s. *A burst after a
quiet time*: one grant, 0.8 s of quiet, then everybody for 0.5 s, so that a window of one second that began with the
grant ends within the burst: near its worst case, on purpose. A fixed window gives what it has at its start, so what
it has given depends on when one looks. One run each; whoever does not keep the bound may do otherwise in the next."""

LOSSES = """\
A hundred of `rpm`, and of `tpm` enough for five; 25 requests of 1 and 500. So many of `rpm` are gone for requests
that were refused:"""

DYNAMODB = """\
The reference is zae-limiter 0.17, by its public API, on the same local engine. Two limits, stored per entity. Time is
mostly the engine's. Write units follow from DynamoDB's billing rules, applied to the table before and after an
acquire. The crowd: 10 tokens a second with a capacity of 20; one process for 1.0 s after 2.5 s of quiet, and four
processes for 2.0 s."""

PREFETCH = """\
One key that is asked for again and again, of a limit that is never reached; each side in a process of its own, all in
turn. Every acquire is timed, after the key was asked for 0.6 s. *Prefetch* is `prefetch=0.5`: tokens are drawn in
advance, and most acquires ask nobody. Times are medians of those four of seven rounds that others have interrupted
least. Calls of the store and write units of DynamoDB are those per 1,000 decisions, background included. In *async*
other tasks of the loop have a turn after every fourth acquire, outside of the time that counts; a *tight loop* gives
them none."""

HTTP = """\
One limit by address in memory. CPU of the server per request over keep-alive sockets, and what of it the limiter
adds to the same app without one; `x ours` compares with ours as the rival is, with headers or without. A round is quiet
over sockets if nine of ten take longer; without a server it is the best of all."""
