"""An extension of Google's Model Explorer, which loads :mod:`.main` and shows bundles with it.

pip install aotpack[model-explorer]
model-explorer --extensions=aotpack.tools.report.model_explorer model.aotpack
"""
