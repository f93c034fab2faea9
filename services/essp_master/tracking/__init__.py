"""The metrics of training runs for TensorBoard, MLflow and W&B, from the same reports as the page.

Activity ──report──▶ tracking.py: points ──queue, one a tracker──▶ thread ──▶ tensorboard.py, mlflow.py, wandb.py
"""
