"""`outrider profile`: what speculation would bring for a target, some drafts and some prompts."""
