# AOTAutograd: a write to as_strided of a view is refused
#
# `FunctionalStorageImpl::add_update` refuses a chain of views with `as_strided` after its first view. `as_strided`
# counts in the memory of the tensor that the view is of, so it can be traced as a view of that tensor. Eager's own
# backward of such a write does so too.
import torch


def f(x):
    y = x * 1
    y[:2].as_strided((2,), (2,)).mul_(2)
    return y


print("expected", f(torch.arange(4.0)).tolist())
try:
    print("seen", torch.compile(f, backend="aot_eager")(torch.arange(4.0)).tolist())
except Exception as error:
    print("seen", str(error).splitlines()[0])
