"""Opponents: what others would write for the same work. They run in processes of their own, some in other environments.

They import nothing of undergrowth: the folder that this package is in is all they need (`python -m opponents.flower`).
"""
