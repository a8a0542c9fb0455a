"""What a learner's network is made of: layers on one flat vector, passes over them, distributions, Adam. All torch."""
