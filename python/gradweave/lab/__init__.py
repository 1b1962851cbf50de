"""The laboratory: example jobs, hosts with slow links on one machine, and comparisons with DistributedDataParallel.

What trains a user's own job imports nothing from here.
"""
