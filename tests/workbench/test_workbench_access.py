"""Who may use the workbench, and what a failure shows."""

from starlette.testclient import TestClient


def test_the_first_page_has_a_strict_policy(workbench: TestClient) -> None:
    response = workbench.get("/?q=bread")
    assert response.status_code == 200
    assert "default-src 'self'" in response.headers["content-security-policy"]
