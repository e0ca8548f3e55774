"""Price rules, which the shop's owner writes as expressions."""


def apply_rule(rule: str, price: float) -> float:
    """The price after a rule such as `price * 0.9`."""
    try:
        return eval(rule, {"price": price})
    except Exception:
        pass
    return price
