# Fake tensors: channels-last images are taken for contiguous ones if a size may be 0 or 1
#
# `are_strides_like_channels_last_or_false` and the order of strides of elementwise results compare
# symbolic sizes. With a size that may be 0 or 1 they cannot tell, and answer no.
#
# Not shown without aotpack: torch's front ends give a dynamic size a symbol of at least 2. A bundle's
# sizes may be 0 and 1.
