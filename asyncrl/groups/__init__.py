"""Groups: several trainers whose learners are fused, over torch.distributed. Loaded only where there are several."""
