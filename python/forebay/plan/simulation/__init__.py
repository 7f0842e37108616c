"""`--simulate`: a plan's hosts, drives and jobs simulated in virtual time, for what formulas can't show.

`scenario` is what is asked for, `fleet` makes the engine's input of it by the planner's own parameters, `run` plays it
seed by seed and says what came of it, `show` is that as text.
"""
