"""The metrics of training runs for TensorBoard and MLflow, from the same reports as the page.

Activity ──report──▶ tracking.py: points ──queue, one a tracker──▶ thread ──▶ tensorboard.py, mlflow.py
"""
