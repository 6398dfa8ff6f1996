"""Opponents of `undergrowth bench engines`: the same work as a user of another framework would write it.

They run in processes of their own, some in other Python environments, and import nothing of undergrowth but its module
`protocol`, which needs torch and NumPy only. `bench engines` puts both folders on their path.
"""
