"""Groups: several trainers whose learners are fused over torch.distributed. Imported only if there are several."""
