"""Where others call us: the torch.compile backend."""
