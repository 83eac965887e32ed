"""Federation between silos: rows stay where they are, sealed models travel.

`node` is a site and knows no carrier; `wire` is what travels; `rounds` is the loop of a fit without
a carrier. `in_process` and `nvflare` carry it: another carrier is one more folder beside them.
"""
