"""Model families: each module describes an architecture and maps its checkpoint names to parameters."""
