"""A cluster of one machine, for tests of the chart: nodes and pods are network namespaces, containers are real processes that
crun starts from the rendered objects, and the parts of Kubernetes on which the chart relies are done as Kubernetes does them.

    machine      a machine of the test's own: everything in it ends with the test
    network      nodes, pods' links, routes
    services     addresses, endpoints and names of Services
    volumes      pods' volumes as folders
    rules        Services and NetworkPolicies as nftables rules
    names        the cluster's name server
    certificates what cert-manager would issue
    image        the root file system of every container
    spec         a container of a pod's spec as an OCI bundle
    container    one container, by crun
    probes       startup, liveness and readiness probes
    pod          a pod's life, as the kubelet leads it
    rollout      the decisions of the Deployment controller
    cluster      all of it together: apply, drain, lose a node
    release      what Helm does with rendered objects, hooks among them
    api          Kubernetes' API, for Jobs and routers: rights (who may do what), resources (Deployments, their scale, Leases)
    hub          a hub of models outside
    load, client requests from a pod, each answer compared with the undisturbed one
    installed    a release in a cluster, and what tests ask about it
    scenarios    what happens, and what must be true then; expiry: of certificates; scaling: by the routers; variants_here: the values
    leaders      which router decides on the workers
"""
