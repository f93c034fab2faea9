# A labelled set of videos, two trainers, their fusion, and predictions for videos that no training has seen.
echo "making videos: the first of some ten minutes on two cores"
essp demo-data s3://essp/demo --out /tmp
essp job start /tmp/train.yaml --wait
essp job start /tmp/predict.yaml --wait
essp job ls
