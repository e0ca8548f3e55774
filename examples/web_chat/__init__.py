"""A chat in the browser: streamed, stored in SQLite, and the same in every tab.

`prompt` is the agent, `store` stores the chats, `live` runs them and updates the tabs, `server`
contains the routes, and `page` the files that the browser loads. The page and the server speak
AG-UI, with the help of `contrib.ag_ui`.
"""
