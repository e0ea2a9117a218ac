"""A Ray cluster on this machine, as a program: each simulated node has a loopback address of its own.

stdin    {"add": {"node_ip_address": "127.0.0.11", "num_cpus": 2}}    {"kill": "127.0.0.11"}
         {"restart": []}: the head node dies, the other nodes with it; another head has the same address
stdout   {"address": "127.0.0.2:40123"}, then one line for each order
"""

from __future__ import annotations

import json
import os
import sys

from ray.cluster_utils import Cluster

STORE = 80 * 1024 * 1024


def main() -> None:
    answers = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)

    def tell(line: dict[str, object]) -> None:
        answers.write(json.dumps(line) + "\n")
        answers.flush()

    head = {"node_ip_address": json.loads(sys.argv[1])["head"], "num_cpus": 0, "include_dashboard": False}
    cluster = Cluster(initialize_head=True, head_node_args={**head, "object_store_memory": STORE})
    nodes = {}
    tell({"address": cluster.address})
    for line in sys.stdin:
        order = json.loads(line)
        if "add" in order:
            node = cluster.add_node(object_store_memory=STORE, **order["add"])
            nodes[order["add"]["node_ip_address"]] = node
            tell({"added": order["add"]["node_ip_address"]})
        elif "restart" in order:
            port = int(cluster.address.rpartition(":")[2])
            for node in [cluster.head_node, *nodes.values()]:
                cluster.remove_node(node, allow_graceful=False)
            nodes = {}
            args = {**head, "object_store_memory": STORE, "gcs_server_port": port}
            cluster = Cluster(initialize_head=True, head_node_args=args)
            tell({"address": cluster.address})
        else:
            cluster.remove_node(nodes.pop(order["kill"]), allow_graceful=False)
            tell({"killed": order["kill"]})
    cluster.shutdown()


if __name__ == "__main__":
    main()
