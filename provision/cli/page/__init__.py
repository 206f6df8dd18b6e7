"""The page "Which PyTorch and CUDA for my GPU and driver?": one HTML file that needs no server.

In: the catalog. Out: the bytes of the page. It holds the resolver's own answers to every question
that it can ask; its scripts look answers up and show them, and decide nothing.

    questions --one for each GPU, driver, framework, CUDA, Python--> answers --> nodes --> site
                                                            rows and sources --> facts ----^
"""
