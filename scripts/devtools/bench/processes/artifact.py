"""Saves an artifact from which a peer starts without compiling.

The kinds are ``aot_compile``'s artifact, an exported program and AOTInductor's package.

artifact.py --kind aot_compile|export|aoti --model model.py --inputs inputs.pt --out FILE

It uses one thread, because an artifact of ``aot_compile`` runs only with the number of threads of
its creation.
"""

import argparse

import torch
import torch._inductor

from aotpack.tools.measure.contender import user_model


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--kind", choices=["aot_compile", "export", "aoti"], required=True)
    parser.add_argument("--model", required=True)
    parser.add_argument("--inputs", required=True)
    parser.add_argument("--out", required=True)
    options = parser.parse_args()
    torch.set_num_threads(1)
    model = user_model(options.model)
    args, kwargs = torch.load(options.inputs, weights_only=True)
    if options.kind == "aot_compile":
        # Without this filter, models with guards that cannot be stored are refused, such as
        # transformers' GPT-2.
        guards = {"guard_filter_fn": torch.compiler.keep_portable_guards_unsafe}
        compiled = torch.compile(model, fullgraph=True, options=guards).forward.aot_compile((args, kwargs))
        compiled.save_compiled_function(options.out)
    elif options.kind == "export":
        torch.export.save(torch.export.export(model, args, kwargs), options.out)
    else:
        model.eval()
        with torch.no_grad():
            exported = torch.export.export(model, args, kwargs)
            torch._inductor.aoti_compile_and_package(exported, package_path=options.out)


if __name__ == "__main__":
    main()
