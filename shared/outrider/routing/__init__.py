"""Where sessions go: the store of replicas and bindings, and the choice among them."""
