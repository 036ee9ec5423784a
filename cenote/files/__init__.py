"""From files to rows of texts, and from answers to files that can be continued."""
