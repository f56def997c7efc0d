# Inductor: the order of strides such as 16 and 16 * s is asked for with a guard, which refuses s = 1
#
# `argsort_sym` compares the strides with guards. Where a size of 1 makes two of them equal, both
# orders are right, so no guard is needed.
import torch

torch.fx.experimental._config.backed_size_oblivious = True


class Model(torch.nn.Module):
    def forward(self, x):
        return torch.nn.functional.scaled_dot_product_attention(*[x.transpose(1, 2)] * 3)


sizes = ({1: torch.export.Dim.DYNAMIC},)
exported = torch.export.export(Model(), (torch.rand(2, 6, 2, 8),), dynamic_shapes=sizes)
env = next(iter(exported.graph.nodes)).meta["val"].fake_mode.shape_env
before = len(env.guards)
torch._inductor.aoti_compile_and_package(exported)
print("expected", set())
print("seen", {str(guard.expr) for guard in env.guards[before:]})
