"""A chat in the browser: streamed, stored in SQLite, and the same in every tab.

`prompt` is the agent, `store` keeps the chats, `live` runs them and tells the tabs, `server` has
the routes, and `page` is what the browser loads. The wire is AG-UI, by `contrib.ag_ui`.
"""
