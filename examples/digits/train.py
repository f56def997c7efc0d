"""What a deployment runs: trains the digits bundle. Needs the bundle and the loader, not model.py and no compiler.

python train.py digits.aotpack
"""

import argparse

import torch
from sklearn.datasets import load_digits
from sklearn.model_selection import train_test_split

import aotpack_loader


def data() -> tuple[torch.Tensor, ...]:
    """Real handwritten digits, from scikit-learn's own wheel: train and test images, train and test labels."""
    images, labels = load_digits(return_X_y=True)
    images = torch.tensor(images, dtype=torch.float32).reshape(-1, 1, 8, 8) / 16
    return tuple(train_test_split(images, torch.tensor(labels), test_size=0.25, random_state=0))


def train(model: torch.nn.Module, images: torch.Tensor, labels: torch.Tensor, epochs: int) -> None:
    model.train()
    optimizer = torch.optim.AdamW(model.parameters(), lr=3e-3)
    for epoch in range(epochs):
        total = 0.0
        batches = torch.randperm(len(images)).split(64)
        for batch in batches:
            loss = model(images[batch], labels[batch])["loss"]
            loss.backward()
            optimizer.step()
            optimizer.zero_grad()
            total += loss.item()
        print(f"epoch {epoch + 1}: loss {total / len(batches):.4f}", flush=True)


@torch.no_grad()
def accuracy(model: torch.nn.Module, images: torch.Tensor, labels: torch.Tensor) -> float:
    model.eval()
    predicted = model(images, labels)["logits"].argmax(dim=1)
    return (predicted == labels).double().mean().item()


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("bundle")
    parser.add_argument("--epochs", type=int, default=5)
    parser.add_argument("--trust", help='a digest, or "all": lets native code of a bundle from elsewhere run')
    options = parser.parse_args()

    torch.manual_seed(0)
    model = aotpack_loader.load(options.bundle, trust=options.trust)
    train_images, test_images, train_labels, test_labels = data()
    train(model, train_images, train_labels, options.epochs)
    print(f"test accuracy: {accuracy(model, test_images, test_labels):.4f}")


if __name__ == "__main__":
    main()
