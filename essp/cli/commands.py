"""Every command of `essp`: where it is implemented, what it is for, and examples.

This table alone produces `essp --help` and the completion of names, so neither loads a service. Examples are shown at
the end of each command's own help; examples of sub-commands are stored under both names.
"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Command:
    """A top-level command."""

    target: str
    """`module:attribute` of its function, or of the app of its sub-commands."""
    summary: str


SECTIONS: dict[str, dict[str, Command]] = {
    "Work with data and jobs": {
        "demo": Command("essp.cli.demo:main", "Make a labelled video set and run the whole journey on it."),
        "catalog": Command("essp.cli.catalog:app", "Build, show and check catalogs of videos."),
        "records": Command("essp.cli.records:app", "Build, show, verify and change data sets of images."),
        "bench": Command("essp.cli.bench:app", "Measure reading, training and saving; name the limiting factor."),
        "init": Command("essp.cli.init:main", "Write a commented job file for a data set."),
        "validate": Command("essp.cli.validate:main", "Check a job file, and say what it would do."),
        "plan": Command("essp.cli.plan:main", "How many workers a job needs, and the limiting factor."),
        "run": Command("essp.cli.run:main", "Run a job in this process; no servers needed."),
        "predict": Command("essp.cli.predict:main", "Classify videos with a trained model."),
        "extract": Command("essp.cli.extract:main", "Write embeddings or features of many videos."),
        "evaluate": Command("essp.cli.evaluate:app", "Compare what a model has found with labels."),
        "checkpoint": Command("essp.cli.checkpoint:app", "List, verify and compare checkpoints; export models."),
        "weights": Command("essp.cli.weights:app", "Fetch published weights to start from."),
        "report": Command("essp.cli.report:main", "Make the report of a finished training job."),
        "compare": Command("essp.cli.compare:main", "Compare training jobs: settings, curves, figures."),
        "page": Command("essp.cli.page:main", "Show the page of jobs that have run, without a master."),
        "export": Command("essp.cli.export:app", "Write the curves of training jobs as CSV or JSON."),
        "audit": Command("essp.cli.audit:main", "Check a job's history against what ESSP promises."),
        "deadletter": Command("essp.cli.deadletter:app", "List, replay and purge what could not be processed."),
        "extractor": Command("essp.cli.extractor:app", "List, describe, preview and run feature extractors."),
    },
    "Drive a running master": {
        "job": Command("essp.cli.job:app", "Start, watch, change, pause, resume and stop jobs over REST."),
        "pool": Command("essp.cli.pool:app", "Show the pools of a running master, and set their sizes."),
        "top": Command("essp.cli.top:main", "What each pool does and uses: cores, memory, disk, GPUs."),
        "logs": Command("essp.cli.logs:main", "What workers log, of all pools or about one job."),
        "registry": Command("essp.cli.registry:app", "Register extractors and trainers with a master."),
        "token": Command("essp.cli.token:main", "Make a token for the master's API."),
    },
    "Run services": {
        "servers": Command("essp.servers.main:app", "Redis, a Kafka-protocol broker and S3 on this machine."),
        "setup": Command("essp.cli.setup:main", "Create topics and buckets, where they are missing."),
        "doctor": Command("essp.cli.doctor:main", "Check servers, master and machine; say how to fix them."),
        "master": Command("essp_master.main:main", "Issue seeds, account for them, serve the REST API."),
        "decoder": Command("essp_decoder.main:main", "Decode clips."),
        "trainer": Command("essp_trainer.main:main", "Train one model on one stream."),
        "aggregator": Command("essp.cli.aggregator:app", "Fuse the streams of finished training jobs; list how."),
        "predictor": Command("essp_predictor.main:main", "Score the clips of prediction jobs."),
        "demo-data": Command("essp.cli.demo_data:main", "Put the demo's videos and jobs into a store."),
    },
}

EXAMPLES: dict[str, tuple[str, ...]] = {
    "demo": ("essp demo", "essp demo --dir /tmp/demo --epochs 2 --videos-per-class 6"),
    "catalog build": (
        "essp catalog build videos/ --out catalog.parquet",
        "essp catalog build lerobot://data/aloha --camera observation.images.top --out top.parquet",
        "essp catalog build UCF-101/ --source ucf101 --split 1 --out ucf.parquet",
        "essp catalog build s3://bucket/videos --out s3://bucket/catalog.parquet",
    ),
    "catalog merge": ("essp catalog merge own=own.parquet web=web.parquet --out both.parquet",),
    "catalog relocate": (
        "essp catalog relocate catalog.parquet /home/me/videos /data/videos",
        "essp catalog relocate s3://bucket/catalog.parquet",
    ),
    "catalog check": (
        "essp catalog check catalog.parquet",
        "essp catalog check catalog.parquet --frames 16 --stride 4 --sample 1000",
        "essp catalog check catalog.parquet --fast --json",
    ),
    "catalog show": ("essp catalog show catalog.parquet", "essp catalog show catalog.parquet --problems"),
    "records build": (
        "essp records build images/ --out data/images",
        "essp records build cifar-10-binary.tar.gz --out data/cifar10",
        "essp records build images.csv --encode raw --size 224 --out s3://bucket/images",
        "essp records build coco/annotations/instances_train2017.json --encode raw --size 64 --out data/objects",
        "essp records build catalog.parquet --within train --frames-a-video 4 --size 224 --out data/frames",
    ),
    "records show": ("essp records show data/images", "essp records show data/images --version 1 --json"),
    "records verify": ("essp records verify data/images",),
    "records delete": (
        "essp records delete data/images --keys 17 --keys 100-199 --dry-run",
        "essp records delete data/images --label blurred --yes",
    ),
    "records clean": ("essp records clean data/images --dry-run", "essp records clean data/images --older-than 48"),
    "bench io": (
        "essp bench io --source images/ --threads 1,2,4,8",
        "essp bench io --source catalog.parquet --pipeline read,full --cold --plot io.png",
        "essp bench io --source images.csv --throttle hdd --throttle 133MB/s,8ms --json",
        "essp bench io --source data/images --store s3://bucket/scratch --trace trace.csv",
    ),
    "bench app": (
        "essp bench app --source images/",
        "essp bench app --source images/ --step-time 50ms --throttle hdd --throttle ssd",
        "essp bench app --source catalog.parquet --prefetch 0,1,4 --trace trace.csv --plot app.png",
    ),
    "bench checkpoint": (
        "essp bench checkpoint --store /mnt/slow",
        "essp bench checkpoint --size 600MB --throttle 133MB/s,8ms --buffer /mnt/nvme",
        "essp bench checkpoint --model alexnet --store s3://bucket/scratch --trace trace.csv",
    ),
    "init": (
        "essp init catalog.parquet",
        "essp init catalog.parquet --model resnet18 --out resnet.yaml",
        "essp init catalog.parquet --for few",
        "essp init catalog.parquet --for paper --out paper.yaml",
        "essp init data/train --test data/test",
    ),
    "validate": (
        "essp validate job.yaml",
        "essp validate job.yaml --set clip.frames=16 --name longer",
        "essp validate job.yaml --json",
    ),
    "plan": (
        "essp plan job.yaml",
        "essp plan job.yaml --rate 880 --gpus 8 --plot plan.png",
        "essp plan job.yaml --rate 880 --redis 2GB --network 3GB --core-price 0.04 --gpu-price 2.50 --json",
    ),
    "run": (
        "essp run job.yaml",
        "essp run job.yaml --epochs 20",
        "essp run job.yaml --set trainers.rgb.optimizer.lr=0.02 --set trainers.rgb.batch_size=16 --name lr02",
        "essp run runs/catalog",
        "essp run job.yaml --serve 8080 --keep",
        "essp run job.yaml --splits 1,2,3",
        "essp run job.yaml --json > run.jsonl",
    ),
    "predict": (
        "essp predict new.mp4 --model runs/catalog",
        "essp predict videos/ --model runs/catalog --json",
        "essp predict match.mp4 --model runs/catalog --segments --every 0.5s",
    ),
    "extract": (
        "essp extract videos/ --network resnet18 --out runs/embeddings",
        "essp extract catalog.parquet --network timm:vit_small_patch16_224 --every 0.5s --dtype float16 --out runs/vit",
        "essp extract catalog.parquet --network r3d_18 --frames 16 --every 16f --format npy --out runs/r3d",
        "essp extract catalog.parquet --model runs/ucf101 --clips 8 --pool mean --out runs/pooled",
        "essp extract catalog.parquet --feature hog --dry-run --out runs/hog",
    ),
    "evaluate segments": (
        "essp evaluate segments found.json --truth labels.csv",
        "essp evaluate segments runs/untrimmed --truth labels.csv --iou 0.1:0.9",
        "essp evaluate segments found.json --truth activity_net.v1-3.min.json --subset validation --json",
    ),
    "checkpoint ls": ("essp checkpoint ls runs/catalog", "essp checkpoint ls s3://bucket/run --trainer rgb --json"),
    "checkpoint show": ("essp checkpoint show runs/catalog --trainer rgb",),
    "checkpoint verify": ("essp checkpoint verify runs/catalog",),
    "checkpoint diff": ("essp checkpoint diff runs/catalog 1200 2400 --trainer rgb",),
    "checkpoint export": (
        "essp checkpoint export runs/catalog --out small --bits 8",
        "essp checkpoint export runs/catalog --out small --bits 6 --check videos/",
        "essp checkpoint export runs/catalog --out program --format onnx",
    ),
    "weights fetch": (
        "essp weights fetch resnet18",
        "essp weights fetch timm:vit_small_patch16_224 --out vit.safetensors",
        "essp weights fetch hf:MCG-NJU/videomae-base-finetuned-kinetics",
    ),
    "report": ("essp report runs/catalog",),
    "compare": (
        "essp compare runs/catalog runs/lr02",
        "essp compare runs/* --out compare.html",
        "essp compare s3://bucket/a s3://bucket/b --json",
    ),
    "page": ("essp page runs/", "essp page s3://bucket/runs --port 8080"),
    "export curves": ("essp export curves runs/catalog --out curves.csv", "essp export curves runs/a runs/b --json"),
    "audit": ("essp audit runs/catalog", "essp audit catalog --server http://master:8080"),
    "deadletter ls": ("essp deadletter ls --from runs/catalog", "essp deadletter ls --job catalog --kind damaged"),
    "deadletter show": ("essp deadletter show 3f2a91bc --from runs/catalog",),
    "deadletter replay": ("essp deadletter replay 3f2a91bc", "essp deadletter replay --kind vanished"),
    "deadletter purge": ("essp deadletter purge --job catalog --yes",),
    "extractor ls": ("essp extractor ls",),
    "extractor describe": ("essp extractor describe flow",),
    "extractor preview": (
        "essp extractor preview video.mp4 --feature flow --param method=tvl1",
        "essp extractor preview video.mp4 --feature hog --out hog.mp4",
    ),
    "extractor run": ("essp extractor run --feature flow",),
    "job start": ("essp job start job.yaml", "essp job start job.yaml --wait --json"),
    "job ls": ("essp job ls --state running",),
    "job get": ("essp job get catalog", "essp job get catalog --watch"),
    "job pause": ("essp job pause catalog",),
    "job resume": ("essp job resume catalog",),
    "job stop": ("essp job stop catalog --yes",),
    "job rm": ("essp job rm runs/first --dry-run", "essp job rm catalog --yes"),
    "job priority": ("essp job priority catalog 10", "essp job priority catalog -5"),
    "job set": (
        "essp job set catalog trainers.rgb.optimizer.lr=0.001",
        "essp job set catalog 'aggregation.strategies=[average, {name: top_k, k: [1, 3]}]'",
        "essp job set catalog epochs=30",
        "essp job set catalog trainers.wide.stream=rgb trainers.wide.model=resnet50",
        "essp job set catalog --file hog.yaml",
    ),
    "job wait": ("essp job wait catalog --timeout 3600",),
    "job events": ("essp job events catalog",),
    "job why": (
        "essp job why runs/catalog 4711 --epoch 2",
        "essp job why catalog 17 --purpose test",
        "essp job why runs/catalog --video kick/1.mp4",
    ),
    "job dump": ("essp job dump runs/catalog", "essp job dump catalog --out bug.zip"),
    "pool ls": ("essp pool ls",),
    "pool set": ("essp pool set decoder --min 2 --max 16", "essp pool set decoder --replicas 4"),
    "pool reset": ("essp pool reset decoder",),
    "pool pause": ("essp pool pause decoder",),
    "pool resume": ("essp pool resume decoder",),
    "pool events": ("essp pool events",),
    "top": ("essp top", "essp top --watch", "essp top --processes --json"),
    "logs": (
        "essp logs --job catalog --follow",
        "essp logs --pool trainer --level warning",
        "essp logs --lines 1000 --json",
    ),
    "registry ls": ("essp registry ls --kind extractors",),
    "registry get": ("essp registry get extractors depth",),
    "registry put": ("essp registry put extractors depth.yaml",),
    "registry rm": ("essp registry rm extractors depth --yes",),
    "registry log": ("essp registry log",),
    "token": ("essp token ci --scope operate",),
    "servers up": ("essp servers up", "essp servers up --redis-memory 4GiB --json"),
    "setup": ("essp setup --feature flow --buckets",),
    "doctor": ("essp doctor", "essp doctor --server http://master:8080"),
    "master": ("essp master --port 8080",),
    "decoder": ("ESSP_BUS=kafka://broker:9092 ESSP_CACHE=redis://redis:6379/0 essp decoder",),
    "trainer": ("essp trainer --job catalog --trainer rgb", "essp trainer --job catalog --trainer rgb --ranks 2"),
    "aggregator": ("ESSP_BUS=kafka://broker:9092 essp aggregator",),
    "aggregator ls": ("essp aggregator ls",),
    "aggregator describe": ("essp aggregator describe top_k",),
    "predictor": ("ESSP_BUS=kafka://broker:9092 ESSP_CACHE=redis://redis:6379/0 essp predictor",),
    "demo-data": ("essp demo-data s3://essp/demo --out jobs",),
}
