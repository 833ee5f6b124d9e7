"""The half that gives the same answer twice: kinds, ids, codec, banks, recall, policies, fold, verify.

Nothing here awaits, reads a clock, rolls a die or meets a vendor. Write `from events.kinds import Diagnosed`.
"""
