from shop.orders import add_item, total


def test_total():
    assert total(add_item("tea", 3)) == 3
