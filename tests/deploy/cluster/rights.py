"""A call of Kubernetes' API as its authorizer sees it, and whether RoleBindings permit it: pure functions."""

import dataclasses
import re

PATH = re.compile(r"/apis/([^/]+)/v1/namespaces/([^/]+)/([^/]+)(?:/([^/]+))?(?:/([^/]+))?$")
VERBS = {"GET": "get", "POST": "create", "PUT": "update", "PATCH": "patch", "DELETE": "delete"}


@dataclasses.dataclass(frozen=True)
class Ask:
    """`resource` has its subresource behind a slash; `name` is empty for all objects of a resource and for a new one."""
    verb: str
    group: str
    resource: str
    namespace: str
    name: str

    def object(self):
        return f"{self.resource.split('/')[0]}.{self.group} \"{self.name}\""


def ask_of(method, path):
    """None where the path is none of an API of Kubernetes."""
    found = PATH.match(path)
    if not found or method not in VERBS:
        return None
    group, namespace, resource, name, subresource = found.groups()
    verb = "list" if method == "GET" and not name else VERBS[method]
    return Ask(verb, group, f"{resource}/{subresource}" if subresource else resource, namespace, name or "")


def permits(rule, ask):
    """Rules with names permit no `create`, because its name is in the body, which an authorizer does not see."""
    def among(values, value):
        return value in values or "*" in values
    return among(rule["apiGroups"], ask.group) and among(rule["resources"], ask.resource) and among(rule["verbs"], ask.verb) and \
        ask.name in rule.get("resourceNames", [ask.name])


def may(account, ask, bindings, roles):
    """`account` is a namespace and a name, `bindings` and `roles` are the cluster's objects."""
    rules = {(role["metadata"]["namespace"], role["metadata"]["name"]): role["rules"] for role in roles}
    for binding in bindings:
        subjects = {(subject["kind"], subject["namespace"], subject["name"]) for subject in binding["subjects"]}
        if binding["metadata"]["namespace"] != ask.namespace or ("ServiceAccount", *account) not in subjects:
            continue
        if any(permits(rule, ask) for rule in rules.get((ask.namespace, binding["roleRef"]["name"]), [])):
            return True
    return False


def refusal(account, ask):
    """As the API server words it."""
    return (f"{ask.object()} is forbidden: User \"system:serviceaccount:{account[0]}:{account[1]}\" cannot {ask.verb} resource "
            f"\"{ask.resource}\" in API group \"{ask.group}\" in the namespace \"{ask.namespace}\"")
