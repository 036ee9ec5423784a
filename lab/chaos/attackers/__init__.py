"""Attackers: clients that send what a server must refuse, each in a process of its own, beside the honest load."""
