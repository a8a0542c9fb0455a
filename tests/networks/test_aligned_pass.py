import pytest
import torch

from asyncrl.acting.policies import mlp_blocks
from asyncrl.networks.aligned_pass import AlignedPass
from asyncrl.networks.mlp import FlatMLP, MLPPass, initial_weights

SIZES = [(4, 8, 6, 3), (1, 5, 2), (7, 9, 8, 5, 1)]


def network(sizes: tuple[int, ...]) -> FlatMLP:
    blocks = mlp_blocks(sizes)
    return FlatMLP(blocks, initial_weights(blocks, torch.Generator().manual_seed(0)))


@pytest.mark.parametrize("kernels", [False, True])
@pytest.mark.parametrize("rows", [6, 10])
@pytest.mark.parametrize("sizes", SIZES)
def test_it_says_what_the_other_pass_says(sizes: tuple[int, ...], rows: int, kernels: bool) -> None:
    net = network(sizes)
    x = torch.ones(10, sizes[0] + 1)
    ours, theirs = (FlatMLP(net.blocks, torch.full_like(net.flat, torch.nan)) for _ in range(2))
    run = AlignedPass(net, x[:, :-1], ours, rows, kernels=kernels)
    other = MLPPass(net, x, theirs, rows)
    for _ in range(2):  # twice, with another input
        x[:, :-1].normal_()
        net.flat.mul_(1.1)
        torch.testing.assert_close(run.forward(), other.forward())
        grad = torch.randn(rows, sizes[-1])
        run.backward(grad)
        other.backward(grad)
        torch.testing.assert_close(ours.flat, theirs.flat)


@pytest.mark.parametrize("kernels", [False, True])
def test_a_pass_that_only_looks(kernels: bool) -> None:
    net, x = network(SIZES[0]), torch.randn(3, 4)
    expected = MLPPass(net, torch.cat((x, torch.ones(3, 1)), dim=1)).forward()
    torch.testing.assert_close(AlignedPass(net, x, kernels=kernels).forward(), expected)
