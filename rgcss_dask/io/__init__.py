"""Files and objects, local and at URLs: atomic writes, retries, claims for one writer, checks of outputs."""
