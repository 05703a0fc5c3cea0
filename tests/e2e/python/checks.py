"""Checks of a client library against a running Penstock: each says what it is, and whether it holds."""


def run(checks, client):
    """Calls each with `client`; the exit status."""
    failed = 0
    for function in checks:
        try:
            function(client)
            print(f"ok   {function.__name__}", flush=True)
        except Exception as error:  # pylint: disable=broad-except
            failed += 1
            print(f"FAIL {function.__name__}: {type(error).__name__}: {error}", flush=True)
    print(f"{len(checks) - failed} of {len(checks)} hold")
    return failed != 0
