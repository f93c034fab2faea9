# A labelled set of videos, two trainers, their fusion, and predictions for videos that no training has seen.
echo "making videos, some two minutes"
essp demo-data s3://essp/demo --out /tmp --videos-per-class 12 --epochs 6 --clips-per-epoch 720
essp job start /tmp/train.yaml --wait
essp job start /tmp/predict.yaml --wait
essp job ls
