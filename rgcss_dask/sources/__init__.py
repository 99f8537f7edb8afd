"""Where rows come from: each kind of data behind one small interface."""
